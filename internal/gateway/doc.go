// Package gateway is an endpoint picker for Envoy: the server of its ext_proc filter
// (envoy.service.ext_proc.v3.ExternalProcessor) that says which engine gets a request, by
// the protocol of the Gateway API Inference Extension.
//
// A request is one stream of messages, an exchange: its headers, body and trailers come,
// the picker chooses and books, and the answer is headers that name the engine. What the
// engine answers passes here too, chunk by chunk, and tells when the prefill is complete,
// how much was generated, and when the booking ends. The choice and the bookings are those
// of package selecting, in the same process.
package gateway
