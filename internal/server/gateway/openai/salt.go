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

// CacheSalt returns the salt under which a request's blocks are known here (empty: none), and
// engineSalt, the salt as its engine gets it: with Dynamo's tag if tagged. The last tenant id that
// is not blank (headers x-tenant-id) takes precedence over the body's salt. An extra key is a part
// of the former only. SGLang's events do not tell it, so that such a prompt finds no cached block;
// with it, prompts of equal keys and salts still find each other's. The error is ErrSalt.
func (r *Request) CacheSalt(tenants []string, tagged bool) (salt, engineSalt string, err error) {
	for _, t := range tenants {
		salt = cmp.Or(strings.TrimSpace(t), salt)
	}
	salt = cmp.Or(salt, r.Salt)
	if engineSalt = salt; tagged && salt != "" {
		engineSalt = SaltTag + salt
	}
	if utf8.RuneCountInString(engineSalt) > MaxSalt || strings.ContainsAny(salt, "@/\\\x00") || !utf8.ValidString(salt) {
		return "", "", ErrSalt
	}
	if r.ExtraKey != "" {
		salt = r.ExtraKey + "\x00" + salt // no other pair has this text: a salt has no NUL
	}
	return salt, engineSalt, nil
}
