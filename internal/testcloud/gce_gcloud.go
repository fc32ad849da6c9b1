package testcloud

import (
	"fmt"
	"strings"
)

// RunGcloud executes gcloud commands for IAM roles, service accounts and buckets, one per line, like a shell. It skips
// other lines; an unknown gcloud command is an error.
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

// gcloud executes one command.
func (g *GCE) gcloud(words []string) error {
	flags, rest := map[string]string{}, []string{}
	for i := 0; i < len(words); i++ {
		if flag, isFlag := strings.CutPrefix(words[i], "--"); isFlag && i+1 < len(words) {
			i++
			flags[flag] = words[i]
			continue
		}
		rest = append(rest, words[i])
	}
	name := rest[len(rest)-1]
	member := strings.TrimPrefix(flags["member"], "serviceAccount:")
	switch strings.Join(rest[:len(rest)-1], " ") {
	case "iam roles create":
		g.SetRole("projects/"+flags["project"]+"/roles/"+name, strings.Split(flags["permissions"], ",")...)
	case "iam service-accounts create":
		g.CreateServiceAccount(name + "@" + flags["project"] + ".iam.gserviceaccount.com")
	case "iam service-accounts add-iam-policy-binding":
		if flags["role"] == "roles/iam.workloadIdentityUser" {
			g.withLock(func() { g.federated[name] = append(g.federated[name], member) })
			return nil
		}
		g.AllowActAs(name, member)
	case "iam workload-identity-pools create":
		g.withLock(func() { g.pools[name] = gcePool{} })
	case "iam workload-identity-pools providers create-aws":
		if g.pools[flags["workload-identity-pool"]] == nil || flags["location"] != "global" {
			return fmt.Errorf("no pool %s", flags["workload-identity-pool"])
		}
		g.withLock(func() { g.pools[flags["workload-identity-pool"]][name] = flags["account-id"] })
	case "projects add-iam-policy-binding":
		_, expression, _ := strings.Cut(flags["condition"], "expression=")
		g.BindRole(member, flags["role"], expression)
	case "storage buckets add-iam-policy-binding":
		g.withLock(func() {
			b := g.buckets[strings.TrimPrefix(name, "gs://")]
			b.policy.Bindings = append(b.policy.Bindings, gcsBinding{flags["role"], []string{flags["member"]}})
		})
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

// SplitShellWords splits a line into words like a shell. It removes comments; a text in single quotes is one
// word.
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
