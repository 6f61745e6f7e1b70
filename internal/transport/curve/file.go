package curve

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxFile bounds a file of keys, in bytes: some 20,000 of them.
const maxFile = 1 << 20

var (
	errNoSecret  = errors.New("no secret key in it")
	errTwoSecret = errors.New("more than one secret key in it")
	errMismatch  = errors.New("its public key is not that of its secret key")
	errTooLarge  = fmt.Errorf("larger than %d bytes", maxFile)
)

// ReadKeyPair reads the secret key in a file: a certificate of pyzmq or czmq, what
// curve_keygen or "select-service curve new" print, or the 40 characters of the key
// alone.
func ReadKeyPair(path string) (*KeyPair, error) {
	keys, err := readFile(path)
	if err != nil {
		return nil, err
	}
	secrets := keys.secret
	if len(secrets) == 0 && len(keys.public) == 0 {
		secrets = keys.bare
	}
	switch {
	case len(secrets) == 0:
		return nil, fmt.Errorf("%s: %w", path, errNoSecret)
	case len(secrets) > 1:
		return nil, fmt.Errorf("%s: %w", path, errTwoSecret)
	}
	pair, err := ParseSecretKey(secrets[0])
	if err != nil {
		return nil, fmt.Errorf("%s: secret key: %w", path, err)
	}
	for _, text := range keys.public {
		if text != pair.Public.String() {
			return nil, fmt.Errorf("%s: %w", path, errMismatch)
		}
	}
	return pair, nil
}

// fileKeys has the keys of a file as text, by what the file calls them.
type fileKeys struct{ public, secret, bare []string }

func readFile(path string) (fileKeys, error) {
	f, err := os.Open(path)
	if err != nil {
		return fileKeys{}, err //nolint:wrapcheck // it names the file
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return fileKeys{}, err //nolint:wrapcheck // it names the file
	}
	if len(content) > maxFile {
		return fileKeys{}, fmt.Errorf("%s: %w", path, errTooLarge)
	}
	keys, err := parseFile(string(content))
	if err != nil {
		return fileKeys{}, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}

// parseFile reads the lines of a file. A key alone on a line belongs to the heading of
// curve_keygen above it, if there is one.
func parseFile(content string) (fileKeys, error) {
	var keys fileKeys
	under := &keys.bare
	number := 0
	certificate := strings.Contains(content, "secret-key") || strings.Contains(content, "public-key")
	keygen := strings.Contains(content, "== CURVE ")
	for line := range strings.Lines(content) {
		number++
		line = strings.TrimSpace(line)
		name, value, assigned := strings.Cut(line, "=")
		_, plain := decodeZ85(line)
		switch {
		case plain: // before comments: # is a digit of Z85
			*under = append(*under, line)
		case line == "", line[0] == '#':
		case line == "== CURVE PUBLIC KEY ==":
			under = &keys.public
		case line == "== CURVE SECRET KEY ==":
			under = &keys.secret
		case assigned && strings.TrimSpace(name) == "public-key":
			keys.public = append(keys.public, unquote(value))
		case assigned && strings.TrimSpace(name) == "secret-key":
			keys.secret = append(keys.secret, unquote(value))
		case certificate, keygen: // metadata; the tool's explanation
		default:
			return fileKeys{}, fmt.Errorf("line %d: %w", number, ErrKey) // not the line: it may hold a key
		}
	}
	return keys, nil
}

func unquote(s string) string { return strings.Trim(strings.TrimSpace(s), `"`) }

// Certificate is the text of a key file as pyzmq and czmq write it.
func (p *KeyPair) Certificate() string {
	return fmt.Sprintf("# ZeroMQ CURVE secret certificate: for its owner alone.\n\nmetadata\ncurve\n"+
		"    public-key = %q\n    secret-key = %q\n", p.Public, p.SecretText())
}
