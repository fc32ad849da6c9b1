package tui

import "charm.land/bubbles/v2/key"

// KeyMap holds every key binding of the dashboard. Keystrokes are matched against it and
// the help is generated from it, so the two cannot differ. Capital letters sort, and are
// defined by the columns of each list.
type KeyMap struct {
	View                                          [views]key.Binding
	Up, Down, PageUp, PageDown, Top, Bottom       key.Binding
	Open, Back                                    key.Binding
	NextRegion, PreviousRegion                    key.Binding
	Filter, Command, Sort                         key.Binding
	Mark, YAML, Logs, Describe, Shell             key.Binding
	Drain, Undrain, Donate, Reclaim, Apply        key.Binding
	Pause, Earlier, Later, MuchEarlier, MuchLater key.Binding
	Refresh, Theme, Mouse, Help, Suspend, Quit    key.Binding
}

// NewKeyMap returns the dashboard's keys.
func NewKeyMap() KeyMap {
	bind := func(help, desc string, keys ...string) key.Binding {
		return key.NewBinding(key.WithKeys(keys...), key.WithHelp(help, desc))
	}
	k := KeyMap{
		Up:             bind("k, up", "previous row", "k", "up"),
		Down:           bind("j, down", "next row", "j", "down"),
		PageUp:         bind("pgup, ^B", "page up", "pgup", "ctrl+b"),
		PageDown:       bind("pgdn, ^F", "page down", "pgdown", "ctrl+f"),
		Top:            bind("g, home", "first row", "g", "home"),
		Bottom:         bind("G, end", "last row", "G", "shift+g", "end"),
		Open:           bind("enter", "open", "enter"),
		Back:           bind("esc", "back", "esc"),
		NextRegion:     bind("tab", "show only the next region", "tab"),
		PreviousRegion: bind("shift+tab", "show only the previous region", "shift+tab"),
		Filter:         bind("/", "filter (text, !exclude, ~fuzzy, =exact)", "/"),
		Command:        bind(":", "command (tab completes)", ":"),
		Sort:           bind("z", "next column", "z"),
		Mark:           bind("space", "mark / unmark", "space"),
		YAML:           bind("y", "view as YAML", "y"),
		Logs:           bind("l", "logs", "l"),
		Describe:       bind("d", "describe (replicas: as enter)", "d"),
		Shell:          bind("s", "shell on the machine", "s"),
		Drain:          bind("x", "drain", "x"),
		Undrain:        bind("u", "undrain", "u"),
		Donate:         bind("o", "donate to other work", "o"),
		Reclaim:        bind("c", "reclaim a donated replica", "c"),
		Apply:          bind("a", "apply the plan", "a"),
		Pause:          bind("p", "pause / resume", "p"),
		Earlier:        bind("<", "previous snapshot", "<", "shift+<", "left"),
		Later:          bind(">", "next snapshot", ">", "shift+>", "right"),
		MuchEarlier:    bind("{", "back 1 minute (up to 1 hour)", "{", "shift+{"),
		MuchLater:      bind("}", "forward 1 minute (esc: live)", "}", "shift+}"),
		Refresh:        bind("r", "refresh", "r"),
		Theme:          bind("t", "next theme", "t"),
		Mouse:          bind("m", "toggle mouse", "m"),
		Help:           bind("?", "toggle help", "?"),
		Suspend:        bind("^Z", "suspend", "ctrl+z"),
		Quit:           bind("q, ^C", "quit", "q", "ctrl+c"),
	}
	for v, viewKey := range viewKeys {
		k.View[v] = bind(viewKey, viewNames[v], viewKey, "shift+"+viewKey)
	}
	return k
}

// Groups returns the keys in the groups of the help.
func (k KeyMap) Groups() []KeyGroup {
	return []KeyGroup{
		{"Views", k.View[:], nil},
		{"Navigation", []key.Binding{k.Up, k.Down, k.PageUp, k.PageDown, k.Top, k.Bottom, k.Open, k.Back}, nil},
		{"Display", []key.Binding{k.NextRegion, k.PreviousRegion, k.Filter, k.Command, k.Describe, k.YAML, k.Logs, k.Shell}, nil},
		{"Time", []key.Binding{k.Pause, k.Earlier, k.Later, k.MuchEarlier, k.MuchLater, k.Refresh}, nil},
		{"Actions (y confirms the prompt)", []key.Binding{k.Mark, k.Drain, k.Undrain, k.Donate, k.Reclaim, k.Apply}, []string{
			"x, u, o, c: on replicas, in views 2, 6;", "not in services with cloud regions.", "All actions, also a: only on the", "machine that ran 'skyserve up'.",
		}},
		{"General", []key.Binding{k.Theme, k.Mouse, k.Help, k.Suspend, k.Quit}, nil},
	}
}

// KeyGroup is a titled list of keys, with notes on where they apply.
type KeyGroup struct {
	Title string
	Keys  []key.Binding
	Notes []string
}
