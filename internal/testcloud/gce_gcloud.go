package testcloud

import (
	"fmt"
	"strings"
)

// Gcloud runs commands about roles and accounts, a line each, as an operator pastes them into a
// shell that has Google's tool of that name. Lines of anything else are left out; a command that the
// fake does not know is an error.
func (g *GCE) Gcloud(commands string) error {
	for line := range strings.Lines(commands) {
		words := ShellWords(line)
		if len(words) < 4 || words[0] != "gcloud" {
			continue
		}
		if err := g.gcloud(words[1:]); err != nil {
			return fmt.Errorf("running %s: %w", strings.TrimSpace(line), err)
		}
	}
	return nil
}

// gcloud runs one command.
func (g *GCE) gcloud(words []string) error {
	flags, rest := map[string]string{}, []string{}
	for i := 0; i < len(words); i++ {
		if name, isFlag := strings.CutPrefix(words[i], "--"); isFlag && i+1 < len(words) {
			i++
			flags[name] = words[i]
			continue
		}
		rest = append(rest, words[i])
	}
	about := rest[len(rest)-1]
	member := strings.TrimPrefix(flags["member"], "serviceAccount:")
	switch strings.Join(rest[:len(rest)-1], " ") {
	case "iam roles create":
		g.SetRole("projects/"+flags["project"]+"/roles/"+about, strings.Split(flags["permissions"], ",")...)
	case "iam service-accounts create":
		g.SetAccount(about + "@" + flags["project"] + ".iam.gserviceaccount.com")
	case "iam service-accounts add-iam-policy-binding":
		g.LetActAs(about, member)
	case "projects add-iam-policy-binding":
		_, expression, _ := strings.Cut(flags["condition"], "expression=")
		g.Bind(member, flags["role"], expression)
	default:
		return fmt.Errorf("the fake does not know it")
	}
	return nil
}

// ShellWords are the words of a line as a shell reads them, less a comment; words in single quotes
// are one.
func ShellWords(line string) []string {
	var words []string
	for {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			return words
		}
		if line[0] == '\'' {
			word, rest, _ := strings.Cut(line[1:], "'")
			words, line = append(words, word), rest
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		words, line = append(words, word), rest
	}
}
