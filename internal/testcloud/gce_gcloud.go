package testcloud

import (
	"fmt"
	"strings"
)

// Gcloud runs gcloud commands for roles and accounts, one per line, as an operator pastes them into a
// shell. It skips other lines; an unknown gcloud command is an error.
func (g *GCE) RunGcloud(commands string) error {
	for line := range strings.Lines(commands) {
		words := SplitShellWords(line)
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
		g.CreateServiceAccount(about + "@" + flags["project"] + ".iam.gserviceaccount.com")
	case "iam service-accounts add-iam-policy-binding":
		g.AllowActAs(about, member)
	case "projects add-iam-policy-binding":
		_, expression, _ := strings.Cut(flags["condition"], "expression=")
		g.BindRole(member, flags["role"], expression)
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

// ShellWords splits a line as a shell does, without a comment; a text in single quotes is one word.
func SplitShellWords(line string) []string {
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
