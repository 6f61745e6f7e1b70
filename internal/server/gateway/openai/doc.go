// Package openai parses what clients and engines send in the dialects of OpenAI's and
// Anthropic's HTTP APIs, as far as the choice of a worker and its load accounting need it:
// requests (ParseRequest), the bodies that tokenizers take instead (Request.RenderBody,
// Request.TokenizeBody), answers piece by piece (Response), and errors (AppendError).
//
// It does not validate what only an engine needs. A body is passed on byte by byte, except
// for the model and the cache salt where these are replaced.
package openai
