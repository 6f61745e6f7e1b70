// Package tokenizer is the tokenizer and the chat template of the simulated engines. It is a
// toy: a token is a word or a part of one, and its id is a hash of the letters. As with a real
// one, texts with equal beginnings have equal first tokens, and encoding the text of an answer
// gives the answer's tokens.
package tokenizer

import (
	"encoding/binary"
	"unicode"

	"github.com/zeebo/xxh3"
)

// Ids of tokens, as of a vocabulary of 128,000.
const (
	beginning  = 1   // of a text
	markers    = 256 // below it are the marks of the chat template
	vocabulary = 128_000
)

const longestPiece = 5 // runes

// Encode returns the tokens of a text. special: begin with the token for the beginning of a text.
func Encode(text string, special bool) []uint32 {
	var tokens []uint32
	if special {
		tokens = append(tokens, beginning)
	}
	for _, piece := range Pieces(text) {
		tokens = append(tokens, id(piece))
	}
	return tokens
}

// Pieces splits a text into the texts of its tokens: before each white space, and in longer
// words after every fifth letter.
func Pieces(text string) []string {
	var pieces []string
	begin, runes := 0, 0
	for i, r := range text {
		if runes > 0 && (runes == longestPiece || unicode.IsSpace(r)) {
			pieces = append(pieces, text[begin:i])
			begin, runes = i, 0
		}
		runes++
	}
	if begin < len(text) {
		pieces = append(pieces, text[begin:])
	}
	return pieces
}

func id(piece string) uint32 {
	return markers + uint32(xxh3.HashString(piece)%(vocabulary-markers))
}

// Message is one message of a chat.
type Message struct{ Role, Content string }

// Template configures how a chat becomes a prompt.
type Template struct {
	Tools    string // text before the messages
	Continue bool   // the last message is open: the answer goes on with it
	Open     bool   // the beginning of an answer follows the messages
}

// Chat returns the tokens of a chat: the mark of a beginning, and for each message a
// mark for its role, its text, and the mark of its end.
func Chat(messages []Message, t Template) []uint32 {
	tokens := []uint32{beginning}
	if t.Tools != "" {
		tokens = append(append(append(tokens, mark("tools")), Encode(t.Tools, false)...), mark("end"))
	}
	for i, m := range messages {
		tokens = append(append(tokens, mark(m.Role)), Encode(m.Content, false)...)
		if i < len(messages)-1 || !t.Continue {
			tokens = append(tokens, mark("end"))
		}
	}
	if t.Open && !t.Continue {
		tokens = append(tokens, mark("assistant"))
	}
	return tokens
}

func mark(name string) uint32 { return 2 + uint32(xxh3.HashString(name)%(markers-2)) }

// Answer invents the answer to a prompt: n words of one token each, always the same ones for
// the same prompt. Concatenated they are the text of the answer.
func Answer(prompt []uint32, n int) (words []string, tokens []uint32) {
	buf := make([]byte, 0, 4*len(prompt))
	for _, token := range prompt {
		buf = binary.LittleEndian.AppendUint32(buf, token)
	}
	seed := xxh3.Hash(buf)
	words, tokens = make([]string, n), make([]uint32, n)
	for i := range n {
		words[i] = word(xxh3.HashSeed(binary.LittleEndian.AppendUint64(buf[:0], uint64(i)), seed))
		tokens[i] = id(words[i])
	}
	return words, tokens
}

// word is a space and four letters.
func word(n uint64) string {
	letters := [longestPiece]byte{' '}
	for i := 1; i < len(letters); i++ {
		letters[i] = 'a' + byte(n%26)
		n /= 26
	}
	return string(letters[:])
}
