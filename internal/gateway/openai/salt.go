package openai

import (
	"cmp"
	"errors"
	"strings"
	"unicode/utf8"
)

// SaltTag is what Dynamo writes before a salt that it gives to an engine.
const SaltTag = "dynamo-cache-salt:"

// MaxSalt is the longest salt that vLLM takes, in characters, with the tag if it has one.
const MaxSalt = 128

// ErrSalt refuses a cache salt that engines would not take.
var ErrSalt = errors.New("cache salt must have at most 128 characters, with its tag if there is one, and none of @ / \\ and NUL")

// CacheSalt returns the salt of a request, empty for none, and what its engine is told.
// The last of the tenant ids that says something (the headers x-tenant-id) goes before
// what the body says. tagged: the engine is told the salt with Dynamo's tag. The error
// is ErrSalt.
func (r *Request) CacheSalt(tenants []string, tagged bool) (salt, told string, err error) {
	for _, t := range tenants {
		salt = cmp.Or(strings.TrimSpace(t), salt)
	}
	if salt = cmp.Or(salt, r.Salt); salt == "" {
		return "", "", nil
	}
	if told = salt; tagged {
		told = SaltTag + salt
	}
	if utf8.RuneCountInString(told) > MaxSalt || strings.ContainsAny(salt, "@/\\\x00") || !utf8.ValidString(salt) {
		return "", "", ErrSalt
	}
	return salt, told, nil
}
