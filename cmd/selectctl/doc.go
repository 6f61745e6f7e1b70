// Command selectctl shows operators what a running select-service knows and why it chose as it
// did, and changes its workers and thresholds. It uses the public API alone, by pkg/client.
package main
