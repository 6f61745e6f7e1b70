// Package waitqueue holds the requests of one scope that wait because every rank that they
// could use is busy, and runs each when its turn comes. Package admission decides the order.
package waitqueue
