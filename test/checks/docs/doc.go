// Package docs runs the sessions of the documentation: what a reader copies
// into a shell works, and answers what the page says.
package docs
