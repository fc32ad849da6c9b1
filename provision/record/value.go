package record

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Redactor removes secrets from texts. Equal secrets become equal placeholders, so that a reader sees that two
// calls concern the same object. It is safe for concurrent use.
type Redactor struct {
	known    *strings.Replacer // of the environment's secrets
	mu       sync.Mutex        // guards the fields below
	secrets  map[string]string // placeholder by secret
	replaced map[string]string // pseudonym by account or project
}

// minKnown is the minimum length of a variable's value that is removed wherever it occurs, in characters.
const minKnown = 6

// maxNames is the maximum number of numbered placeholders; later secrets have none.
const maxNames = 1 << 16

// NewRedactor returns a redactor. It removes the values of an environment's variables with sensitive names
// wherever they occur; variables have the form NAME=VALUE.
func NewRedactor(environment []string) *Redactor {
	r := &Redactor{secrets: map[string]string{}, replaced: map[string]string{}}
	var values []string
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		if len(value) < minKnown || !sensitiveVariable(name) {
			continue
		}
		for line := range strings.Lines(value) {
			if line = strings.TrimSpace(line); len(line) >= minKnown {
				values = append(values, line)
			}
		}
		values = append(values, value)
	}
	slices.SortFunc(values, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	var pairs []string
	for _, value := range slices.Compact(values) {
		hidden := r.placeholder(value)
		for _, form := range []string{value, url.QueryEscape(value), url.PathEscape(value), base64.StdEncoding.EncodeToString([]byte(value)), base64.RawURLEncoding.EncodeToString([]byte(value))} {
			pairs = append(pairs, form, hidden)
		}
	}
	r.known = strings.NewReplacer(pairs...)
	return r
}

// sensitiveVariable reports whether an environment variable may contain a secret.
func sensitiveVariable(name string) bool {
	plain := plainName(name)
	return sensitive(name, true) || slices.ContainsFunc([]string{"token", "key", "pass", "jwt"}, func(w string) bool { return strings.Contains(plain, w) })
}

// placeholder returns the placeholder of a secret.
func (r *Redactor) placeholder(secret string) string {
	if secret == "" || placeholders.MatchString(secret) {
		return secret
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	name := r.secrets[secret]
	if name == "" {
		if len(r.secrets) >= maxNames {
			return "REDACTED"
		}
		name = fmt.Sprintf("REDACTED-%d", len(r.secrets)+1)
		r.secrets[secret] = name
	}
	return name
}

// placeholders matches a text that is a placeholder.
var placeholders = regexp.MustCompile(`^REDACTED(-\d+)?$`)

// Value returns a text without secrets. The text may be a JSON document, which IAM and prices contain.
func (r *Redactor) Value(text string) string { return r.value(text, 0) }

func (r *Redactor) value(text string, depth int) string {
	if text == "" || placeholders.MatchString(text) {
		return text
	}
	if depth > maxDepth {
		return r.placeholder(text)
	}
	if trimmed := strings.TrimSpace(text); strings.HasPrefix(trimmed, "{") || strings.HasPrefix(trimmed, "[") {
		if clean, ok := r.json(trimmed, depth+1); ok {
			return clean
		}
	}
	if strings.HasPrefix(text, "%7B") || strings.HasPrefix(text, "%5B") { // IAM's answers contain policies in this form
		if plain, err := url.QueryUnescape(text); err == nil {
			return url.QueryEscape(r.value(plain, depth+1))
		}
	}
	text = r.known.Replace(text)
	for _, p := range patterns() {
		text = p.ReplaceAllStringFunc(text, func(found string) string {
			if ownAccount.MatchString(found) {
				return found
			}
			if m := p.FindStringSubmatchIndex(found); len(m) > 2 && m[2] >= 0 { // only the group is secret
				return found[:m[2]] + r.placeholder(found[m[2]:m[3]]) + found[m[3]:]
			}
			return r.placeholder(found)
		})
	}
	text = r.projects(r.accounts(text))
	return r.tokens(text)
}

// patterns match secrets by their form, from the documentation of those who issue them. With a group, only the
// group is secret. They are compiled at their first use, not in every command.
var patterns = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`),
		regexp.MustCompile(`(?i)\b(?:bearer|basic) +([A-Za-z0-9+/=_.~-]{6,})`),
		regexp.MustCompile(`\b(?:AKIA|ASIA|ABIA|ACCA|AIDA|AROA|AIPA|AGPA|ANPA|ANVA|APKA|ASCA)[A-Z0-9]{12,}`),        // AWS: ids of keys, users, roles
		regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`),                              // JSON web tokens
		regexp.MustCompile(`\bya29\.[A-Za-z0-9_.-]+`),                                                               // Google: access tokens
		regexp.MustCompile(`\b1//[A-Za-z0-9_-]{10,}`),                                                               // Google: refresh tokens
		regexp.MustCompile(`\bAIza[A-Za-z0-9_-]{10,}`),                                                              // Google: API keys
		regexp.MustCompile(`\b(?:hf|ghp|gho|ghs|ghu|github_pat|glpat|sk|pk|rk|npm|dckr_pat)[_-][A-Za-z0-9_-]{12,}`), // tokens with a prefix
		regexp.MustCompile(`[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}`),
		regexp.MustCompile(`(?i)(?:password|passwd|passphrase|secret|(?:access|api|private|ssh)[_-]?key|token|signature|credential|authorization|cookie|user[_-]?data)[A-Za-z0-9_.-]*["']?\s*[=:]\s*["']?([^\s"'&,;<>]+)`),
	}
})

// ownAccount matches the service account of a service at Google. It is no person's address, and machines are
// launched with it. The project in it is replaced.
var ownAccount = regexp.MustCompile(`^skyserve-[a-z0-9-]+@[a-z0-9-]+\.iam\.gserviceaccount\.com$`)

// accountIDs match the numbers of AWS accounts and Google Cloud projects.
var accountIDs = regexp.MustCompile(`\b\d{12}\b`)

// publicAccounts own AWS's and Canonical's images.
var publicAccounts = map[string]bool{"099720109477": true, "137112412989": true, "898082745236": true, "763104351884": true, "602401143452": true}

// accounts replaces the numbers of accounts by pseudonyms of the same form.
func (r *Redactor) accounts(text string) string {
	return accountIDs.ReplaceAllStringFunc(text, func(number string) string {
		if publicAccounts[number] {
			return number
		}
		return r.pseudonym(number, "1000000%05d")
	})
}

// projectNames match a project's id where an API's path or address contains it.
var projectNames = regexp.MustCompile(`(?:projects/|@)([a-z][a-z0-9-]*)`)

// publicProjects are the projects of public images, and words that follow projects/ in a path.
var publicProjects = map[string]bool{
	"ubuntu-os-cloud": true, "deeplearning-platform-release": true, "debian-cloud": true, "cos-cloud": true, "ubuntu-os-accelerator-images": true, "ml-images": true,
	"developer": true, "cloudservices": true, "compute-system": true,
}

// minProject is the minimum length of the id of a Google Cloud project, in characters. Shorter ones, of
// emulators, are replaced only in paths.
const minProject = 6

// projects replaces the ids of projects by pseudonyms, wherever one was seen in a path before.
func (r *Redactor) projects(text string) string {
	text = projectNames.ReplaceAllStringFunc(text, func(found string) string {
		at := strings.IndexAny(found, "/@") + 1
		prefix, name := found[:at], found[at:]
		if publicProjects[name] || pseudonyms.MatchString(name) {
			return found
		}
		return prefix + r.pseudonym(name, "project-%05d")
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, other := range r.replaced {
		if len(name) >= minProject && strings.Contains(text, name) {
			text = replaceWord(text, name, other)
		}
	}
	return text
}

// pseudonyms matches the pseudonym of a project or account.
var pseudonyms = regexp.MustCompile(`^(?:project-\d{5}|1000000\d{5})$`)

// pseudonym returns the pseudonym of an account or project.
func (r *Redactor) pseudonym(name, format string) string {
	if pseudonyms.MatchString(name) {
		return name
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.replaced[name] == "" {
		r.replaced[name] = fmt.Sprintf(format, min(len(r.replaced)+1, 99999))
	}
	return r.replaced[name]
}

// replaceWord replaces a word that has no letter or digit before or after it.
func replaceWord(text, word, by string) string {
	var out strings.Builder
	for {
		i := strings.Index(text, word)
		if i < 0 {
			return out.String() + text
		}
		end := i + len(word)
		if i > 0 && isAlnum(text[i-1]) || end < len(text) && isAlnum(text[end]) {
			out.WriteString(text[:end])
		} else {
			out.WriteString(text[:i] + by)
		}
		text = text[end:]
	}
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
