// Package tokenizer asks a server for the token ids of prompts: a renderer beside the
// engines, or one of the engines itself.
//
// Its HTTP/1.1 client is that of internal/transport/http1. A question of 5 kB with 1,000 ids in its answer takes it 59 µs of
// CPU, net/http's Transport 85 (the median of ten pairs is 1.3 times as much; 1.35 with 5 ms between
// questions), fasthttp's HostClient 44, but 64 with the goroutine that lets a caller leave (1.0 to 1.1
// times): fasthttp knows no context, gives what a server sent unasked to the next question, and reads
// answers into memory that no account counts.
package tokenizer
