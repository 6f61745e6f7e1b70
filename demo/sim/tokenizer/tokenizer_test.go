package tokenizer

import (
	"slices"
	"strings"
	"testing"
)

func TestPieces(t *testing.T) {
	for text, want := range map[string][]string{
		"":                  nil,
		"one two":           {"one", " two"},
		"tokenization":      {"token", "izati", "on"},
		"  a\nb":            {" ", " a", "\nb"},
		"äöüßé and 漢字漢字漢字!": {"äöüßé", " and", " 漢字漢字", "漢字!"},
	} {
		if got := Pieces(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		if got := strings.Join(Pieces(text), ""); got != text {
			t.Errorf("the pieces of %q make %q", text, got)
		}
	}
}

// TestNextTurn proves that the prompt of a chat's next turn begins with the prompt and
// the answer of the turn before.
func TestNextTurn(t *testing.T) {
	chat := []Message{{"system", "Be short."}, {"user", "What is a block?"}}
	prompt := Chat(chat, Template{Open: true})
	words, answer := Answer(prompt, 20)
	next := Chat(append(chat, Message{"assistant", strings.Join(words, "")}, Message{"user", "And a rank?"}), Template{Open: true})
	if said := slices.Concat(prompt, answer); !slices.Equal(next[:len(said)], said) {
		t.Errorf("turn 1: %v, turn 2: %v", said, next)
	}
	if again, _ := Answer(prompt, 20); !slices.Equal(again, words) {
		t.Errorf("another answer to the same prompt: %q, before: %q", again, words)
	}
}

func TestTemplate(t *testing.T) {
	chat := []Message{{"user", "Hi"}}
	closed := Chat(chat, Template{})
	for name, tc := range map[string]struct {
		template Template
		want     []uint32
	}{
		"open":      {Template{Open: true}, append(closed[:len(closed):len(closed)], mark("assistant"))},
		"continued": {Template{Open: true, Continue: true}, closed[:len(closed)-1]},
		"tools":     {Template{Tools: "x"}, slices.Concat([]uint32{beginning, mark("tools")}, Encode("x", false), []uint32{mark("end")}, closed[1:])},
	} {
		if got := Chat(chat, tc.template); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if got := Encode("Hi", true); got[0] != beginning || len(got) != 2 {
		t.Errorf("with the mark of a beginning: %v", got)
	}
}
