package record

import (
	"regexp"
	"strings"
	"sync"
)

// plainForms match texts that look random and are no secrets: ids, times, hosts and addresses. A reader needs
// them to relate the calls.
var plainForms = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(strings.Join([]string{
		`\b[a-z]{1,20}-[0-9a-f]{17}\b`,                                              // ids of EC2: i-0a1b2c3d4e5f60718
		`\b[a-z]{1,20}-[0-9a-f]{8}\b`,                                               // ids of EC2, older
		`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`,          // UUIDs
		`/hostedzone/Z[A-Z0-9]{1,31}`,                                               // Route 53
		`\b\d{4}-?\d{2}-?\d{2}T\d{2}:?\d{2}:?\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})`, // times
		`REDACTED-\d+`,
		`\bskyserve-[a-z]{2,10}-[a-z0-9-]{1,60}`, // names of skyserve's own resources, which end with a hash
	}, "|"))
})

const (
	// minRandom is the minimum length of a text that is judged by its look, in characters.
	minRandom = 16
	// minChanges is the number of changes between letters, capitals and digits from which a text looks random.
	minChanges = 5
	// randomDensity is the minimum number of changes per character.
	randomDensity = 0.12
)

// tokens replaces the parts of a text that look random.
func (r *Redactor) tokens(text string) string {
	if len(text) < minRandom {
		return text
	}
	var out strings.Builder
	for text != "" {
		end, next := len(text), len(text)
		if at := plainForms().FindStringIndex(text); at != nil {
			end, next = at[0], at[1]
		}
		part := r.replaceRuns(text[:end])
		out.WriteString(part + text[end:next])
		text = text[next:]
	}
	return out.String()
}

// alphabets are those of base64, and of its form for URLs.
var alphabets = []func(byte) bool{
	func(c byte) bool { return isAlnum(c) || c == '+' || c == '/' || c == '=' },
	func(c byte) bool { return isAlnum(c) || c == '-' || c == '_' },
}

// replaceRuns replaces the runs of an alphabet that look random. Runs that overlap are one secret.
func (r *Redactor) replaceRuns(text string) string {
	random := make([]bool, len(text))
	for _, in := range alphabets {
		for i := 0; i < len(text); i++ {
			end := i
			for end < len(text) && in(text[end]) {
				end++
			}
			if end > i && looksRandom(text[i:end]) {
				for at := i; at < end; at++ {
					random[at] = true
				}
			}
			i = end
		}
	}
	var out strings.Builder
	for i := 0; i < len(text); {
		end := i
		for end < len(text) && random[end] == random[i] {
			end++
		}
		if random[i] {
			out.WriteString(r.placeholder(text[i:end]))
		} else {
			out.WriteString(text[i:end])
		}
		i = end
	}
	return out.String()
}

// looksRandom reports whether a run looks like a key or token, and not like words and numbers.
func looksRandom(run string) bool {
	if len(run) < minRandom || placeholders.MatchString(run) {
		return false
	}
	changes := 0
	longest, length, digits, letters := 0, 0, 0, 0 // of the part without punctuation
	for i := range len(run) {
		c := run[i]
		if !isAlnum(c) {
			length, digits, letters = 0, 0, 0
			continue
		}
		length++
		if classOf(c) == classDigit {
			digits++
		} else {
			letters++
		}
		if digits > 0 && letters > 0 {
			longest = max(longest, length)
		}
		if i == 0 || !isAlnum(run[i-1]) {
			continue
		}
		before := classOf(run[i-1])
		if before != classOf(c) && (before != classUpper || classOf(c) != classLower) { // a word may begin with a capital
			changes++
		}
	}
	return longest >= minRandom || changes >= minChanges && float64(changes) >= randomDensity*float64(len(run)) && !isWords(run)
}

type class int

const (
	classLower class = iota
	classUpper
	classDigit
)

func classOf(c byte) class {
	switch {
	case c >= '0' && c <= '9':
		return classDigit
	case c >= 'A' && c <= 'Z':
		return classUpper
	}
	return classLower
}

var camelWord = regexp.MustCompile(`[A-Z]+[a-z]*|[a-z]+`)

// isWords reports whether a run is words, each with a capital or divided by punctuation:
// DescribeInstanceTypeOfferings.
func isWords(run string) bool {
	words := camelWord.FindAllString(run, -1)
	for _, w := range words {
		if len(w) < 2 || len(w) > 4 && !strings.ContainsAny(strings.ToLower(w), "aeiouy") {
			return false
		}
	}
	return !strings.ContainsAny(run, "0123456789") && len(run) >= 4*len(words)
}
