package describe

import "time"

// SetPatience changes how long an answer may take.
func (c *Client) SetPatience(d time.Duration) { c.patience = d }
