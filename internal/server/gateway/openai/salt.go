package openai

import (
	"cmp"
	"errors"
	"strings"
	"unicode/utf8"
)

// SaltTag is the prefix that Dynamo puts before a salt that it passes to an engine.
const SaltTag = "dynamo-cache-salt:"

// MaxSalt is the longest salt that vLLM accepts, in characters, including the tag.
const MaxSalt = 128

// ErrSalt refuses a cache salt that engines would not take.
var ErrSalt = errors.New("cache salt must have at most 128 characters, with its tag if there is one, and none of @ / \\ and NUL")

// CacheSalt returns the salt of a request (empty: none), and engineSalt, the salt as its engine
// gets it: with Dynamo's tag if tagged. The last tenant id that is not blank (headers
// x-tenant-id) takes precedence over the body's salt. The error is ErrSalt.
func (r *Request) CacheSalt(tenants []string, tagged bool) (salt, engineSalt string, err error) {
	for _, t := range tenants {
		salt = cmp.Or(strings.TrimSpace(t), salt)
	}
	if salt = cmp.Or(salt, r.Salt); salt == "" {
		return "", "", nil
	}
	if engineSalt = salt; tagged {
		engineSalt = SaltTag + salt
	}
	if utf8.RuneCountInString(engineSalt) > MaxSalt || strings.ContainsAny(salt, "@/\\\x00") || !utf8.ValidString(salt) {
		return "", "", ErrSalt
	}
	return salt, engineSalt, nil
}
