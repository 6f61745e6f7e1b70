package fetch

import (
	"context"
	"net"
	"net/http"
)

// DialWith has the client connect through dial.
func (c *Client) DialWith(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	c.http.Transport.(*http.Transport).DialContext = dial // direct has the same one
}
