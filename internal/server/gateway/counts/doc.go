// Package counts counts the requests through the gateway, and collects the counts.
package counts
