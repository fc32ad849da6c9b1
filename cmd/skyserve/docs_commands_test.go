package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// inlineCommand is a command in the text of a page. A command that is only named, such as `skyserve lb`, is
// checked too.
var inlineCommand = regexp.MustCompile("`(skyserve [^`\n]+)`")

// Every command in the documentation has a verb and flags that exist, by their current names.
func TestCommandsInDocsExist(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "DECISIONS.md", "SECURITY.md", "examples/observe/README.md", ".github/ISSUE_TEMPLATE/bug.md"} {
		pages = append(pages, filepath.Join("../..", page))
	}
	checked := 0
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), "go run ./cmd/skyserve", "skyserve")
		var commands []string
		for _, m := range inlineCommand.FindAllStringSubmatch(text, -1) {
			commands = append(commands, m[1])
		}
		lines := strings.Split(strings.ReplaceAll(text, "\\\n", " "), "\n")
		for _, line := range lines {
			if code := strings.TrimSpace(line); strings.HasPrefix(line, "    ") && strings.HasPrefix(code, "skyserve ") {
				commands = append(commands, code)
			}
		}
		for _, c := range commands {
			if problem := problemOfCommand(c); problem != "" {
				t.Errorf("%s: %s: %s", filepath.Base(page), c, problem)
			}
			checked++
		}
	}
	if checked < 200 {
		t.Fatalf("%d commands were checked: the test no longer finds them", checked)
	}
}

// problemOfCommand returns what is wrong with the calls of skyserve in a shell command; empty = nothing.
func problemOfCommand(text string) (problem string) {
	script, err := syntax.NewParser().Parse(strings.NewReader(text), "")
	if err != nil {
		return "" // a sentence or a pattern such as `skyserve batch submit|list`
	}
	syntax.Walk(script, func(node syntax.Node) bool {
		call, ok := node.(*syntax.CallExpr)
		if !ok {
			return true
		}
		words, err := expand.Fields(nil, call.Args...)
		if err == nil && len(words) > 1 && words[0] == "skyserve" && problem == "" {
			problem = problemOfArguments(words[1:])
		}
		return true
	})
	return problem
}

// problemOfArguments returns what is wrong with the arguments of one call.
func problemOfArguments(args []string) string {
	root := newRoot()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	if strings.HasPrefix(args[0], "-") || args[0] == "COMMAND" || strings.ContainsAny(args[0], ".…") {
		return ""
	}
	cmd, rest, err := root.Find(args)
	if err != nil || cmd == root {
		return "no such command"
	}
	for _, arg := range rest {
		if arg == "--" {
			break
		}
		name, _, _ := strings.Cut(arg, "=")
		var flag *pflag.Flag
		switch {
		case strings.HasPrefix(name, "--") && len(name) > 2:
			name = name[2:]
			if now := formerFlags[cmd.CommandPath()][name]; now != "" {
				return "the flag is now --" + now
			}
			if flag = cmd.Flags().Lookup(name); flag == nil {
				flag = cmd.InheritedFlags().Lookup(name)
			}
		case len(name) == 2 && name[0] == '-' && name != "--":
			flag = cmd.Flags().ShorthandLookup(name[1:])
		default:
			continue
		}
		if flag == nil && name != "help" && name != "-h" && name != "version" {
			return "no flag " + arg
		}
	}
	return ""
}
