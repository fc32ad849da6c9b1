package tui

import (
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"skyserve/internal/service"
)

// maxCompletions is how many completions of a command are shown.
const maxCompletions = 8

// MinInterval is the minimum time between two snapshots: the interval of the heartbeats
// of replicas and peers.
const MinInterval = 100 * time.Millisecond

// runCommand runs a typed command; an error is shown beside the prompt.
func (m *Model) runCommand(text string) tea.Cmd {
	s := &m.screen
	words := strings.Fields(text)
	if len(words) == 0 {
		s.prompt = prompt{}
		return nil
	}
	name, rest := words[0], words[1:]
	if v := viewByName(name); v >= 0 && len(rest) == 0 {
		s.prompt = prompt{}
		return m.openView(v)
	}
	cmd, problem := m.execute(name, rest)
	if problem != "" {
		s.prompt.problem = problem
		return nil
	}
	s.prompt = prompt{}
	return cmd
}

// viewByName returns the view of a name or an unambiguous prefix; -1 for none.
func viewByName(name string) view {
	found := view(-1)
	for i, v := range viewNames {
		if v == name || shortNames[i] == name {
			return view(i)
		}
		if strings.HasPrefix(v, name) {
			if found >= 0 {
				return -1
			}
			found = view(i)
		}
	}
	return found
}

// execute runs a command with arguments, or returns why it cannot.
func (m *Model) execute(name string, args []string) (cmd tea.Cmd, problem string) {
	s := &m.screen
	one := strings.Join(args, " ")
	switch name {
	case "q", "quit", "help", "yaml", "service", string(VerbApply):
		if one != "" {
			return nil, name + ": accepts no arguments, got " + quoted(one)
		}
	}
	switch name {
	case "q", "quit":
		return tea.Quit, ""
	case "help":
		s.help, s.helpOffset = true, 0
	case "yaml", "service":
		return m.openSpec(), ""
	case "filter":
		s.setFilter(one)
	case "theme":
		t, err := NewTheme(one, s.theme.glyphs.ascii)
		if err != nil {
			return nil, err.Error()
		}
		return m.setTheme(t), ""
	case "interval":
		d, err := time.ParseDuration(one)
		if err != nil || d < MinInterval {
			return nil, "interval: must be a duration of at least " + MinInterval.String() + " such as 2s, got " + quoted(one)
		}
		m.cfg.Interval, s.link.interval = d, d
	case "region":
		return nil, s.regionCommand(one)
	case "logs":
		if one == "" {
			return nil, "logs: requires a replica or balancer id"
		}
		return m.openLogs(one), ""
	case "explain":
		if one == "" {
			return nil, "explain: requires a request id"
		}
		return m.openExplanation(one), ""
	default:
		return m.actionCommand(Verb(name), args)
	}
	return nil, ""
}

// regionCommand shows only one region, by its name or place; "all" or "" shows all.
func (s *screen) regionCommand(name string) (problem string) {
	if name == "" || name == "all" {
		s.focusOn("")
		return ""
	}
	if s.snapshot != nil {
		for _, r := range regionsOf(s.snapshot) {
			if string(r.Name) == name || r.Name.ShortName() == name {
				s.focusOn(r.Name)
				return ""
			}
		}
	}
	return "region " + quoted(name) + " not found; tab completes names"
}

// completions returns the commands or arguments that complete a text.
func (s *screen) completions(text string) []string {
	before, last := "", text
	if i := strings.LastIndexByte(text, ' '); i >= 0 {
		before, last = strings.TrimSpace(text[:i]), text[i+1:]
	}
	var all []string
	if before == "" {
		all = append(viewNames[:len(viewNames):len(viewNames)], "apply", "donate", "drain", "explain", "filter", "help", "interval", "logs", "quit", "reclaim", "region", "theme", "undrain", "yaml")
	} else {
		all = s.arguments(strings.Fields(before)[0])
	}
	return slices.DeleteFunc(all, func(w string) bool { return !strings.HasPrefix(w, last) })
}

// arguments returns the possible arguments of a command.
func (s *screen) arguments(name string) []string {
	var words []string
	switch name {
	case "theme":
		return ThemeNames()
	case "region":
		if s.snapshot != nil {
			for _, r := range regionsOf(s.snapshot) {
				words = append(words, s.theme.text(string(r.Name)))
			}
		}
		return append(words, "all")
	case "drain", "undrain", "donate", "reclaim", "logs":
		if s.snapshot == nil {
			return nil
		}
		for _, r := range regionsOf(s.snapshot) {
			for i := range r.Replicas {
				words = append(words, s.theme.text(r.Replicas[i].ID))
			}
			if name == "logs" {
				for _, b := range r.Balancers {
					words = append(words, s.theme.text(b.ID))
				}
			}
		}
	}
	return words
}

// completeCommand extends the prompt by the common prefix of all completions.
func (s *screen) completeCommand() {
	text := s.prompt.value()
	words := s.completions(text)
	if len(words) == 0 {
		return
	}
	common := words[0]
	for _, w := range words[1:] {
		for !strings.HasPrefix(w, common) {
			common = common[:len(common)-1]
		}
	}
	if len(words) == 1 {
		common += " "
	}
	common = strings.ToValidUTF8(common, "")
	head := text[:strings.LastIndexByte(text, ' ')+1]
	s.prompt = openPrompt(':', head+common)
}

// firstWords returns the first n words, followed by "..." if there are more.
func firstWords(words []string, n int) []string {
	if len(words) <= n {
		return words
	}
	return append(words[:n:n], "...")
}

// quoted returns text from outside in quotes, safe to draw.
func quoted(s string) string { return `"` + clean(s) + `"` }

// regionOfReplica returns the region of the replica of that id.
func (s *screen) regionOfReplica(id string) (name service.Region, ok bool) {
	if s.snapshot == nil {
		return "", false
	}
	for i := range s.snapshot.Regions {
		for k := range s.snapshot.Regions[i].Replicas {
			if s.snapshot.Regions[i].Replicas[k].ID == id {
				return s.snapshot.Regions[i].Name, true
			}
		}
	}
	return "", false
}
