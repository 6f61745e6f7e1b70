package tokenizer

import (
	"errors"
	"sync"

	"github.com/select-service/select-service/internal/bodyscan"
)

// answer is the content of a server's answer.
type answer struct {
	ids   []uint32
	found bool
}

// shapes describes the answers, by the name of the member with the ids.
var shapes = map[string]*bodyscan.Object[answer]{
	"tokens":    shape("tokens"),
	"token_ids": shape("token_ids"),
	"input_ids": shape("input_ids"),
}

func shape(name string) *bodyscan.Object[answer] {
	return bodyscan.NewObject(bodyscan.Field[answer]{Name: name, Required: true, Read: func(s *bodyscan.Scanner, a *answer) {
		a.ids, a.found = s.AppendUint32s(make([]uint32, 0, firstIDs)), true
	}})
}

// firstIDs is the initial capacity for ids.
const firstIDs = 1 << 10

// scanners are reused: they keep memory for strings with escapes.
var scanners = sync.Pool{New: func() any { return new(bodyscan.Scanner) }}

var errNoPrompt = errors.New("there is no prompt in it")

// idsIn returns a parser of answers. An answer is an object with the ids in the named member,
// or an array of such objects, one per prompt; the first one counts.
func idsIn(name string) func(text []byte) ([]uint32, error) {
	return func(text []byte) ([]uint32, error) {
		s := scanners.Get().(*bodyscan.Scanner)
		defer func() {
			s.Reset(bodyscan.JSON, nil)
			scanners.Put(s)
		}()
		s.Reset(bodyscan.JSON, text)
		var first answer
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
			return nil, err
		}
		if !first.found {
			return nil, errNoPrompt
		}
		return first.ids, nil
	}
}
