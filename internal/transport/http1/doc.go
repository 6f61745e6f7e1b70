// Package http1 is a client of HTTP/1.1 for requests to engines: what the gateway asks a tokenizer, and what
// a proxy passes on.
//
// It differs from http.Transport in what such requests need:
//
//   - A request is written and its answer read on the caller's goroutine. http.Transport hands both over
//     between three goroutines, which costs more than the rest of a proxied request. Only a body above 64 KiB
//     or from a reader is sent by a second goroutine, so that an early answer is read while it is sent; it
//     has ended when the answer is closed.
//   - A connection that was idle is looked at before it is used again, and is idle for a few seconds only:
//     engines close idle connections early (uvicorn after 5 s). A request that still meets the end of one is
//     sent once more, on a new connection, if no byte of an answer has come.
//   - Errors say how far the request came: see Error.
//   - Answers are read strictly (RFC 9112, without what it leaves to a lenient recipient), since others will
//     read what a proxy makes of them: both Content-Length and Transfer-Encoding, different lengths, folded
//     lines, a line that ends in LF alone, a control character, or a malformed chunk end the answer with
//     ErrProtocol. Heads, trailers, lines of chunks and the number of fields are bounded.
//   - Bodies stay as they are: nothing is decompressed, and no Accept-Encoding is added.
//   - Header fields keep their order, their repeats and the case of their names.
//
// It follows no redirects, keeps no cookies and uses no proxy of the environment.
package http1
