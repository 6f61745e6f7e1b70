// Package tokenizer asks a server for the token ids of prompts: a renderer beside the
// engines, or one of the engines itself.
package tokenizer
