package oidc

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxToken is the maximum size of a token in bytes: most have one or two KB, those with many roles ten.
const maxToken = 16 << 10

// claims are the registered claims of a token, before its signature is verified.
type claims struct {
	Issuer    string   `json:"iss"`
	Subject   string   `json:"sub"`
	Audience  audience `json:"aud"`
	Expires   *instant `json:"exp"`
	NotBefore *instant `json:"nbf"`
	IssuedAt  *instant `json:"iat"`
}

// audience is a text or a list of texts.
type audience []string

// UnmarshalJSON reads either form.
func (a *audience) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*a = audience{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(a))
}

// instant is a number of seconds since the Unix epoch, possibly with a fraction.
type instant time.Time

// maxSeconds is in the year 9999. It prevents an overflow.
const maxSeconds = 253_402_300_799

// UnmarshalJSON reads a number.
func (i *instant) UnmarshalJSON(data []byte) error {
	var seconds float64
	if err := json.Unmarshal(data, &seconds); err != nil {
		return err
	}
	if seconds < 0 || seconds > maxSeconds {
		return errors.New("a time out of range")
	}
	*i = instant(time.Unix(int64(seconds), 0))
	return nil
}

// LooksLikeToken reports whether a bearer credential has the form of a token: three parts with periods
// between them.
func LooksLikeToken(credential string) bool { return strings.Count(credential, ".") == 2 }

// parseToken parses a token without verifying it.
func parseToken(token string) (c claims, algorithm string, err error) {
	if len(token) > maxToken {
		return c, "", fmt.Errorf("the token has %d bytes, at most %d are accepted", len(token), maxToken)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, "", errors.New("the token does not have three parts")
	}
	var header struct {
		Algorithm string `json:"alg"`
	}
	if err := decodePart(parts[0], &header); err != nil {
		return c, "", errors.New("the header of the token is not JSON in base64url")
	}
	if err := decodePart(parts[1], &c); err != nil {
		return c, "", errors.New("the claims of the token are not JSON in base64url, or have a wrong type")
	}
	return c, header.Algorithm, nil
}

func decodePart(part string, into any) error {
	data, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// clockSkew is the maximum difference between the clocks of the issuer and of this machine. Machines with
// NTP differ by less than a second; some issuers set nbf to the current time.
const clockSkew = time.Minute

// checkTimes checks that a token is valid now.
func (c *claims) checkTimes(now time.Time) error {
	switch {
	case c.Expires == nil:
		return errors.New("the token has no expiry (exp)")
	case now.After(time.Time(*c.Expires).Add(clockSkew)):
		return fmt.Errorf("the token expired at %s", formatTime(*c.Expires))
	case c.NotBefore != nil && now.Add(clockSkew).Before(time.Time(*c.NotBefore)):
		return fmt.Errorf("the token is not valid before %s", formatTime(*c.NotBefore))
	case c.IssuedAt != nil && now.Add(clockSkew).Before(time.Time(*c.IssuedAt)):
		return fmt.Errorf("the token was issued in the future, at %s", formatTime(*c.IssuedAt))
	}
	return nil
}

func formatTime(i instant) string { return time.Time(i).UTC().Format(time.RFC3339) }

// checkAudience checks that a token was issued for this service.
func (c *claims) checkAudience(want string) error {
	if slices.Contains(c.Audience, want) {
		return nil
	}
	if len(c.Audience) == 0 {
		return fmt.Errorf("the token has no audience, want %s", quote(want))
	}
	return fmt.Errorf("the token is for audience %s, want %s", quote(strings.Join(c.Audience, " ")), quote(want))
}

// maxQuoted is the maximum length of a claim in an error.
const maxQuoted = 80

// quote quotes a claim for an error. The result contains only characters that a header may contain.
func quote(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\'' || r == '\\' {
			return '?'
		}
		return r
	}, text)
	if len(text) > maxQuoted {
		text = text[:maxQuoted] + "..."
	}
	return "'" + text + "'"
}
