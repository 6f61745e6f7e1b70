// Package extproc is the gateway's front for Envoy: it serves Envoy's ext_proc filter
// (envoy.service.ext_proc.v3.ExternalProcessor) by the endpoint picker protocol of the Gateway API
// Inference Extension. Package gateway, which knows nothing of Envoy, places each request and follows
// its answer.
//
// A request is one stream of messages, a call. call.handle has its phases: the request's headers, body
// and trailers are collected and answered together; then the response's are passed on as they come.
package extproc
