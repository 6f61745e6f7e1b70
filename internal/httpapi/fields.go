package httpapi

import "github.com/select-service/select-service/internal/jsonscan"

// must describes a member that has to be there, may the one that need not; there
// null means the same as absence.
func must[T, V any](name string, field func(*T) *V, read func(*jsonscan.Scanner) V) jsonscan.Field[T] {
	return jsonscan.Field[T]{Name: name, Required: true, Read: jsonscan.Set(field, read)}
}

func may[T, V any](name string, field func(*T) *V, read func(*jsonscan.Scanner) V) jsonscan.Field[T] {
	return jsonscan.Field[T]{Name: name, Read: jsonscan.OrNull(field, read)}
}

// optionally is may for a field that is a pointer.
func optionally[T, V any](name string, field func(*T) **V, read func(*jsonscan.Scanner) V) jsonscan.Field[T] {
	return jsonscan.Field[T]{Name: name, Read: jsonscan.Optional(field, read)}
}
