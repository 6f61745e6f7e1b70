// Package gateway is an endpoint picker for Envoy: the server of its ext_proc filter
// (envoy.service.ext_proc.v3.ExternalProcessor) that says which engine gets a request, by
// the protocol of the Gateway API Inference Extension. The choice and the bookings are those
// of package selecting, in the same process.
//
//  1. A request is one stream of messages, an exchange, whose phases are read in
//     exchange.handle: headers, body and trailers come, are answered when all are there, and
//     then those of the response pass by.
//  2. picker.pick reads the body (package openai), finds the model, has the tokens (package
//     tokenizer), chooses and books, and says where the engine is.
//  3. A booking follows the request: its lease, the end of the prefill (the first event of a
//     stream; else KV events, the predicted time or the first byte), what is generated, a
//     gateway that went elsewhere, and the end.
package gateway
