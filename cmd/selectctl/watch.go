package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/select-service/select-service/internal/codec/redact"
)

// watchEvery is how often --watch shows an answer.
const watchEvery = 2 * time.Second

// watched adds --watch to a command that shows something.
func (a *app) watched(cmd *cobra.Command) *cobra.Command {
	watch, once := false, cmd.RunE
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it every 2 s until interrupted; if the output is no terminal, where it has changed")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !watch {
			return once(cmd, args)
		}
		return a.repeat(cmd.Context(), watchEvery, func() error { return once(cmd, args) })
	}
	return cmd
}

// repeat shows something again and again until ctx ends, which is no error: in a terminal in place of what was there, else
// where it has changed. Once it has been shown, an error is shown in its place, since a service may come back.
func (a *app) repeat(ctx context.Context, every time.Duration, show func() error) error {
	window := a.out
	defer func() { a.out = window }()
	for last, shown := "", false; ; shown = true {
		var page bytes.Buffer
		a.out = &page
		err := show()
		a.out = window
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil, errors.Is(err, errFindings), errors.Is(err, errNotReady): // the page says it
		case !shown:
			return err
		default:
			fmt.Fprintln(&page, advise(err, a.options.URL))
		}
		text := page.String()
		if a.terminal {
			err = a.draw(window, text)
		} else if err = nil; text != last {
			_, err = io.WriteString(window, text)
		}
		last = text
		if err != nil || sleep(ctx, every) != nil {
			return err
		}
	}
}

// draw shows a text in the terminal's window, in place of what was there.
func (a *app) draw(window io.Writer, text string) error {
	text = fmt.Sprintf("%s  %s\n%s", redact.URLs(a.options.URL), time.Now().Format(time.TimeOnly), text)
	if f, ok := window.(*os.File); ok {
		if width, height, err := term.GetSize(int(f.Fd())); err == nil { // else it is not cut
			text = fit(text, width, height)
		}
	}
	_, err := io.WriteString(window, "\x1b[H\x1b[2J"+text)
	return err
}

// fit cuts a text to the lines and columns of a window, and says how many lines are left out.
func fit(text string, width, height int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if over := len(lines) - height; over > 0 && height > 1 {
		lines = append(lines[:height-1], fmt.Sprintf("%d more", over+1))
	}
	for i, line := range lines {
		lines[i] = strings.TrimRight(cut(line, width), " ")
	}
	return strings.Join(lines, "\n")
}

// cut returns the first columns of a line. Its colours take none.
func cut(line string, width int) string {
	column, inColour := 0, false
	for i, r := range line {
		switch {
		case r == '\x1b':
			inColour = true
		case inColour:
			inColour = r != 'm'
		case column == width:
			return line[:i] + uncoloured(line)
		default:
			column++
		}
	}
	return line
}

// uncoloured ends the colours of a line that has some.
func uncoloured(line string) string {
	if strings.ContainsRune(line, '\x1b') {
		return plain
	}
	return ""
}

// sleep waits, or returns the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// isTerminal reports whether out is one.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
