package tokenizer

import (
	"errors"
	"strconv"
	"sync"

	"github.com/select-service/select-service/internal/codec/bodyscan"
)

// answer is the content of a server's answer.
type answer struct {
	ids         []uint32
	found       bool
	modelLength int // the model's context length in tokens; 0: not in the answer
}

// shapes describes the answers, by the name of the member with the ids.
var shapes = map[string]*bodyscan.Object[answer]{
	"tokens":    shape("tokens"),
	"token_ids": shape("token_ids"),
	"input_ids": shape("input_ids"),
}

func shape(name string) *bodyscan.Object[answer] {
	return bodyscan.NewObject(
		bodyscan.Field[answer]{Name: name, Required: true, Read: func(s *bodyscan.Scanner, a *answer) {
			a.ids, a.found = s.AppendUint32s(a.ids[:0]), true
		}},
		bodyscan.Field[answer]{Name: "max_model_len", Read: func(s *bodyscan.Scanner, a *answer) {
			// Anything but a length counts as unknown: the tokens are what was asked for.
			n, err := strconv.ParseUint(string(s.Value()), 10, 31)
			if err == nil {
				a.modelLength = int(n)
			}
		}},
	)
}

// bytesPerID is the memory of an id.
const bytesPerID = 4

// scanners are reused: they keep memory for strings with escapes.
var scanners = sync.Pool{New: func() any { return new(bodyscan.Scanner) }}

var errNoPrompt = errors.New("there is no prompt in it")

// answerWith returns a parser of answers with at most a number of ids. An answer is an object with the
// ids in the named member, or an array of such objects, one per prompt; the first one counts.
func answerWith(name string) func(text []byte, ids int) (answer, error) {
	return func(text []byte, ids int) (answer, error) {
		s := scanners.Get().(*bodyscan.Scanner)
		defer func() {
			s.Reset(bodyscan.JSON, nil)
			scanners.Put(s)
		}()
		s.Reset(bodyscan.JSON, text)
		first := answer{ids: make([]uint32, 0, ids)}
		if s.Next() != '[' {
			shapes[name].Read(s, &first)
		} else {
			for i := range s.Array() {
				if i == 0 {
					shapes[name].Read(s, &first)
				} else {
					s.Skip()
				}
			}
		}
		if err := s.End(); err != nil {
			return answer{}, err
		}
		if !first.found {
			return answer{}, errNoPrompt
		}
		return first, nil
	}
}
