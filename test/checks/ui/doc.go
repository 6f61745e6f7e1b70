// Package ui looks at the operators' page in a real browser (Chromium, driven with chromedp). It
// is a module of its own, so that the service does not depend on the driver: `make test-ui`. The
// screenshots are in bin/ui.
package ui
