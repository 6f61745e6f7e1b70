// Package load reads what engines say of their own load and hands each report to a Sink; it keeps
// none.
//
// Reports are pushed over ZMQ (Streams: SGLang's LoadStat), scraped from the metrics page of an
// engine (Scraper), or told over HTTP, for which the caller makes them. A message that is not a
// report, or has a number that no engine has, is dropped and counted by reason.
package load
