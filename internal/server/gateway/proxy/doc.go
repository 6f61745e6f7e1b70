// Package proxy is the gateway's front for clients: it takes requests of OpenAI's and Anthropic's APIs over HTTP
// and passes them on to the engines that package gateway chooses.
//
//  1. Server.ServeHTTP reads the head and the body of a request, and has it placed.
//  2. forward sends it to the engine, and to another one if the first one has not begun to serve it.
//  3. relay passes the answer on piece by piece, and has the gateway follow it.
//
// One goroutine serves a request. It reads a piece of the answer only after the client has taken the last one,
// so that a slow client slows its engine down and costs no memory. Framing and headers about the connection
// are written anew on both sides.
package proxy
