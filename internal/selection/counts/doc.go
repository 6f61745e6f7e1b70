// Package counts counts selections by model and outcome, and collects the counts.
package counts
