// Package describe asks an engine what it says of itself: its model, adapters, block size, ranks
// and event sockets. SGLang has all of it at /server_info; vLLM at /v1/models, /metrics and, from
// 0.32 on, /kv_event_sources.
//
// An engine is not trusted. Answers are bounded in bytes and time, redirects are not followed, and
// an engine can name no sockets but those of the host at which it was asked.
package describe
