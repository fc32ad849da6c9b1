package service

import (
	"errors"
	"fmt"
	"strings"
)

// Secret is a value that is never displayed: every format prints "(hidden)" instead. Encoders
// must not see it at all; fields of this type have the tags json:"-" and yaml:"-".
type Secret string

// String returns "(hidden)", or nothing for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return concealed
}

// GoString is String, for the format %#v.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// MarshalText is String, for encoders that ignore the tags of a field.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// IsSecretRef reports whether text is the source of a secret, env:NAME or file:PATH, and not a
// secret itself.
func IsSecretRef(text string) bool { return formRef.matches(text) }

// maxBearerKey is the maximum length of a key in a header: engines reject longer headers.
const maxBearerKey = 4096

// ParseBearerKey returns the key in the text of a secret's source, without surrounding white space.
// It returns an error, which does not contain the key, if the text cannot be sent in a header.
func ParseBearerKey(text string) (Secret, error) {
	key := strings.TrimSpace(text)
	switch {
	case key == "":
		return "", errors.New("contains no key")
	case strings.ContainsAny(key, "\r\n"):
		return "", errors.New("must contain one key in one line")
	case len(key) > maxBearerKey:
		return "", fmt.Errorf("must have at most %d bytes, got %d", maxBearerKey, len(key))
	case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", errors.New("must contain one key and nothing else, such as a name: only printable ASCII characters without spaces")
	}
	return Secret(key), nil
}
