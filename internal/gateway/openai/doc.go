// Package openai reads what clients and engines say to each other in the dialects of
// OpenAI's and Anthropic's HTTP APIs, as far as the choice of a worker and the account of
// its load need it: requests (ParseRequest), the bodies that tokenizers take instead
// of them (Request.RenderBody, Request.TokenizeBody), answers piece by piece
// (Response), and errors (AppendError).
//
// Nothing here checks what only an engine needs: a body goes on byte by byte as it
// came, but for the model and the cache salt where they are to be replaced.
package openai
