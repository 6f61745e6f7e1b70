// Command dist packs what a release consists of, from programs that are already
// built. What it writes depends on nothing but its arguments and the files that they
// name: the same input gives the same bytes, on any machine.
//
//	dist archive -out FILE.tar.gz [-prefix DIR] NAME=FILE…
//	dist chart -out FILE.tgz -version V CHART
//	dist image -out FILE.tar -name NAME -version V -certs CA.pem -entrypoint PROGRAM ARCH=DIR…
//	dist wheel -out FOLDER -version V -arch ARCH -readme FILE -license FILE PROGRAM…
//	dist provenance -version V -commit C -go GOVERSION FILE…
//
// The time of all files is SOURCE_DATE_EPOCH, in seconds since 1970, or 1980 where
// that is not set (zip has no earlier one).
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	commands := map[string]func([]string, time.Time) error{
		"archive": archive, "chart": chart, "image": image, "wheel": wheel, "provenance": provenance,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("usage: dist archive|chart|image|wheel|provenance …")
	}
	at, err := epoch(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	return commands[args[0]](args[1:], at)
}

// epoch is the time of all that is written.
func epoch(seconds string) (time.Time, error) {
	if seconds == "" {
		return time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC), nil
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(n, 0).UTC(), nil
}

// pairs reads arguments of the form NAME=VALUE, in their order.
func pairs(args []string) ([][2]string, error) {
	if len(args) == 0 {
		return nil, errors.New("NAME=VALUE is missing")
	}
	var all [][2]string
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" || value == "" {
			return nil, fmt.Errorf("%q is not NAME=VALUE", arg)
		}
		all = append(all, [2]string{name, value})
	}
	return all, nil
}
