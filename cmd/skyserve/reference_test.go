package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"skyserve/internal/sim"
	"skyserve/internal/sim/eval"
	"skyserve/lbd/policy"
)

var (
	updateReference = flag.Bool("update", false, "write docs/cli.md again")
	manPages        = flag.String("man-pages", "", "write the man pages to this directory")
)

// referenceRoot returns the commands as a user sees them, with those that cobra adds when it runs.
func referenceRoot() *cobra.Command {
	root := newRoot()
	root.InitDefaultCompletionCmd()
	root.DisableAutoGenTag = true // it contains today's date
	visitCommands(root, func(c *cobra.Command, _ bool) { c.Long = keepIndentedLines(c.Long) })
	return root
}

// parent returns the command above c, as code; empty for the root.
func parent(c *cobra.Command) string {
	if !c.HasParent() {
		return ""
	}
	return "`" + c.Parent().CommandPath() + "`"
}

// keepIndentedLines makes the indented lines of a help text blocks of Markdown that keep their lines.
func keepIndentedLines(long string) string {
	var lines []string
	inBlock := false
	for line := range strings.Lines(long) {
		indented := strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t")
		if indented != inBlock && strings.TrimSpace(line) != "" {
			lines, inBlock = append(lines, "\n"), indented
		}
		if indented {
			line = "    " + strings.TrimPrefix(line, "  ")
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

// docs/cli.md describes every command and flag of this version.
func TestCommandReferenceIsCurrent(t *testing.T) {
	const file = "../../docs/cli.md"
	want := commandReference(t, referenceRoot())
	if *updateReference {
		if err := os.WriteFile(file, want, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("docs/cli.md is not current: go test ./cmd/skyserve -run %s -update", t.Name())
	}
}

// Sentences of --help fit a terminal of 100 columns. Indented lines are examples and tables.
func TestHelpFitsTerminal(t *testing.T) {
	for _, cmd := range commandsOf(referenceRoot()) {
		for line := range strings.Lines(cmd.Long) {
			if width := len(strings.TrimSuffix(line, "\n")); width > 100 && line[0] != ' ' {
				t.Errorf("%s --help has a line of %d characters: %s", cmd.CommandPath(), width, line)
			}
		}
	}
}

// The help of sim run names the policies that push selectively, and those with a balancer per region.
func TestHelpNamesLayoutsOfPolicies(t *testing.T) {
	var pending, regional []string
	for _, name := range policy.Names() {
		layout, err := eval.CanonicalLayout(name)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case policy.CanonicalPush(name) == "pending":
			pending = append(pending, name)
		case layout == sim.Regional:
			regional = append(regional, name)
		}
	}
	text := strings.Join(strings.Fields(newSimRunCmd().Long), " ")
	last := len(pending) - 1
	for _, want := range []string{
		strings.Join(pending[:last], ", ") + " and " + pending[last] + " push pending",
		strings.Join(pending, ", ") + ", " + strings.Join(regional, " and ") + " have one balancer per region",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("sim run --help does not contain %q", want)
		}
	}
}

// A command has no flag that does nothing there.
func TestFlagsApplyToTheirCommands(t *testing.T) {
	for command, flags := range map[string][]string{
		"offers blocks": {"endpoint-gcp", "gcp-project"}, // blocks are AWS's
		"offers buy":    {"endpoint-gcp", "gcp-project"},
		"replica list":  {"reason"}, // it changes nothing
	} {
		cmd, _, err := referenceRoot().Find(strings.Fields(command))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range flags {
			if cmd.Flag(name) != nil {
				t.Errorf("%s has --%s", command, name)
			}
		}
	}
}

// Every command that --help lists has a man page; hidden commands have none.
func TestManPages(t *testing.T) {
	dir := *manPages
	if dir == "" {
		dir = t.TempDir()
	} else if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // it is part of packages
		t.Fatal(err)
	}
	root := referenceRoot()
	date := time.Unix(0, 0)
	header := &doc.GenManHeader{Section: "1", Source: "skyserve", Manual: "skyserve", Date: &date}
	if os.Getenv("SOURCE_DATE_EPOCH") != "" {
		header.Date = nil // doc reads it
	}
	if err := doc.GenManTree(root, header, dir); err != nil {
		t.Fatal(err)
	}
	shown, hidden := 0, 0
	visitCommands(root, func(c *cobra.Command, visible bool) {
		page := filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
		text, err := os.ReadFile(page)
		switch {
		case visible && err != nil:
			t.Error(err)
		case !visible && err == nil:
			t.Errorf("%s: is a page of a hidden command", page)
		case visible && !strings.Contains(string(text), ".SH SYNOPSIS"):
			t.Errorf("%s: has no synopsis", page)
		}
		if visible {
			shown++
		} else {
			hidden++
		}
	})
	if shown < 40 || hidden < 3 {
		t.Errorf("%d visible and %d hidden commands: the check has lost its subject", shown, hidden)
	}
}

// visitCommands calls visit for c and all commands below it.
func visitCommands(c *cobra.Command, visit func(c *cobra.Command, visible bool)) {
	var walk func(c *cobra.Command, visible bool)
	walk = func(c *cobra.Command, visible bool) {
		visit(c, visible)
		for _, below := range c.Commands() {
			walk(below, visible && below.IsAvailableCommand() && !below.IsAdditionalHelpTopicCommand())
		}
	}
	walk(c, true)
}

// commandReference returns all visible commands as one page.
func commandReference(t *testing.T, root *cobra.Command) []byte {
	var contents, sections bytes.Buffer
	visitCommands(root, func(c *cobra.Command, visible bool) {
		if !visible {
			return
		}
		if c != root {
			anchor := strings.ReplaceAll(c.CommandPath(), " ", "-")
			contents.WriteString("| [`" + strings.TrimPrefix(c.CommandPath(), "skyserve ") + "`](#" + anchor + ") | " + c.Short + " |\n")
		}
		var page bytes.Buffer
		if err := doc.GenMarkdownCustom(c, &page, func(s string) string { return s }); err != nil {
			t.Fatal(err)
		}
		sections.WriteString(section(page.String(), parent(c)))
	})
	var b bytes.Buffer
	b.WriteString(`# Command reference

Generated from the commands' help: ` + "`go test ./cmd/skyserve -run TestCommandReferenceIsCurrent -update`" + ` writes it again.
[Exit codes](exit-codes.md) and [JSON output](json.md) have pages of their own. ` + "`skyserve COMMAND --help`" + ` prints a section, and so does ` + "`man skyserve-COMMAND`" + ` where a package installed the man pages.
The [glossary](glossary.md) explains the words of the commands and of their output.
All commands accept ` + "`--no-color`" + `, which is the same as setting ` + "`NO_COLOR`" + `.

| command | |
|---|---|
`)
	b.Write(contents.Bytes())
	b.Write(sections.Bytes())
	return b.Bytes()
}

var noColorFlag = regexp.MustCompile(`(?m)^ +--no-color .*\n`)

// section makes a command's page of cobra a section of the reference. The flag that all commands have, and the
// links to other pages, are left out.
func section(page, parent string) string {
	page, _, _ = strings.Cut(page, "### SEE ALSO")
	page = noColorFlag.ReplaceAllString(page, "")
	return "\n" + strings.TrimSpace(strings.NewReplacer(
		"### Synopsis\n\n", "",
		"### Examples\n\n", "Examples:\n\n",
		"### Options\n\n", "Flags:\n\n",
		"### Options inherited from parent commands\n\n```\n```\n", "",
		"### Options inherited from parent commands\n\n", "Flags of all "+parent+" commands:\n\n",
	).Replace(page)) + "\n"
}
