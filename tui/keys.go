package tui

import "charm.land/bubbles/v2/key"

// KeyMap is every key of the dashboard. Keystrokes are matched against it and
// the help screen is written from it, so that the two cannot differ. Capital letters
// sort, and belong to the columns of each list.
type KeyMap struct {
	View                                          [views]key.Binding
	Up, Down, PageUp, PageDown, Top, Bottom       key.Binding
	Open, Back                                    key.Binding
	NextRegion, PreviousRegion                    key.Binding
	Filter, Command, Sort                         key.Binding
	Mark, YAML, Logs                              key.Binding
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
		Up:             bind("k, up", "the row above", "k", "up"),
		Down:           bind("j, down", "the row below", "j", "down"),
		PageUp:         bind("pgup, ^B", "one page up", "pgup", "ctrl+b"),
		PageDown:       bind("pgdn, ^F", "one page down", "pgdown", "ctrl+f"),
		Top:            bind("g, home", "the first row", "g", "home"),
		Bottom:         bind("G, end", "the last row", "G", "shift+g", "end"),
		Open:           bind("enter", "into the selection", "enter"),
		Back:           bind("esc", "one step back", "esc"),
		NextRegion:     bind("tab", "next region alone", "tab"),
		PreviousRegion: bind("shift+tab", "previous region alone", "shift+tab"),
		Filter:         bind("/", "words; !word without; ~letters", "/"),
		Command:        bind(":", "a command; tab completes", ":"),
		Sort:           bind("s", "by the next column", "s"),
		Mark:           bind("space", "mark for an order", "space"),
		YAML:           bind("y", "the selection, or the service, as YAML", "y"),
		Logs:           bind("l", "what the replica's process says", "l"),
		Drain:          bind("d", "drain: finish, get nothing more", "d"),
		Undrain:        bind("u", "undo the draining", "u"),
		Donate:         bind("o", "offer to the spot pool (donate)", "o"),
		Reclaim:        bind("c", "call back from the pool (reclaim)", "c"),
		Apply:          bind("a", "apply the plan", "a"),
		Pause:          bind("p", "hold the figures; go on", "p"),
		Earlier:        bind("<", "one snapshot back", "<", "shift+<", "left"),
		Later:          bind(">", "one snapshot on", ">", "shift+>", "right"),
		MuchEarlier:    bind("{", "a minute back, of the last hour", "{", "shift+{"),
		MuchLater:      bind("}", "a minute on; esc: now", "}", "shift+}"),
		Refresh:        bind("r", "fetch now", "r"),
		Theme:          bind("t", "next theme", "t"),
		Mouse:          bind("m", "mouse on, off (off: select text)", "m"),
		Help:           bind("?", "this help", "?"),
		Suspend:        bind("^Z", "suspend", "ctrl+z"),
		Quit:           bind("q, ^C", "leave", "q", "ctrl+c"),
	}
	for v := range views {
		digit := string(rune('1' + v))
		k.View[v] = bind(digit, viewNames[v], digit)
	}
	return k
}

// Groups lists the keys as the help screen shows them.
func (k KeyMap) Groups() []KeyGroup {
	return []KeyGroup{
		{"Views", k.View[:]},
		{"Moving", []key.Binding{k.Up, k.Down, k.PageUp, k.PageDown, k.Top, k.Bottom, k.Open, k.Back}},
		{"Showing", []key.Binding{k.NextRegion, k.PreviousRegion, k.Filter, k.Command, k.YAML, k.Logs}},
		{"Time", []key.Binding{k.Pause, k.Earlier, k.Later, k.MuchEarlier, k.MuchLater, k.Refresh}},
		{"Orders (each asks first)", []key.Binding{k.Mark, k.Drain, k.Undrain, k.Donate, k.Reclaim, k.Apply}},
		{"Screen", []key.Binding{k.Theme, k.Mouse, k.Help, k.Suspend, k.Quit}},
	}
}

// KeyGroup is a titled list of keys.
type KeyGroup struct {
	Title string
	Keys  []key.Binding
}
