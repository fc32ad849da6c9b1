package agent

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// masked replaces secrets in log lines and errors.
const masked = "[masked]"

// minSecret is the length from which values of secrets are masked: shorter ones, such as "1", occur in
// any text and protect nothing.
const minSecret = 6

// secretPatterns match credentials by their form; the groups are kept. They are compiled at their first use,
// not in every command.
var secretPatterns = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`(?i)((?:proxy-)?authorization["']?\s*[:=]\s*["']?(?:bearer |basic |aws4-hmac-sha256 )?)[^\s"',;][^"'\r\n]*`),
		regexp.MustCompile(`(?i)(\bbearer )[A-Za-z0-9._~+/=-]{8,}`),
		regexp.MustCompile(`()\bhf_[A-Za-z0-9]{8,}`),
		regexp.MustCompile(`()\bsk-[A-Za-z0-9_-]{16,}`),
		regexp.MustCompile(`()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`),
		regexp.MustCompile(`(?i)([?&](?:x-amz-(?:signature|security-token|credential)|x-goog-(?:signature|credential)|sig|signature|token|key)=)[^&\s"']+`),
		regexp.MustCompile(`(?i)((?:api[-_]?key|password|secret(?:[-_]access[-_]key)?|access[-_]token)["']?\s*[:=]\s*["']?)[^\s"',)}]{4,}`),
		regexp.MustCompile(`(://[^/\s:@]+:)[^/\s@]+(@)`),
	}
})

// maskSecrets masks the values of a unit's secrets, and whatever has the form of a credential.
func (u Unit) maskSecrets(text string) string {
	return MaskSecrets(text, append(slices.Collect(maps.Values(u.Secrets)), u.ReadinessKey))
}

// MaskSecrets replaces secrets in a text, and whatever has the form of a credential, by "[masked]". Each
// line of a secret with several lines is a secret.
func MaskSecrets(text string, secrets []string) string {
	var values []string
	for _, secret := range secrets {
		for line := range strings.Lines(secret) { // a log has one line of it at a time
			if line = strings.TrimSpace(line); len(line) >= minSecret {
				values = append(values, line)
			}
		}
	}
	slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) }) // a secret may contain another one
	for _, value := range values {
		text = strings.ReplaceAll(text, value, masked)
	}
	for _, p := range secretPatterns() {
		text = p.ReplaceAllString(text, "${1}"+masked+"${2}")
	}
	return text
}

// maskLines masks the secrets of a unit in log lines.
func (u Unit) maskLines(lines []string) []string {
	clean := make([]string, len(lines))
	for i, line := range lines {
		clean[i] = u.maskSecrets(line)
	}
	return clean
}
