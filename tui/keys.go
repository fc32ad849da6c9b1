package tui

import "charm.land/bubbles/v2/key"

// KeyMap is every key of the dashboard. Keystrokes are matched against it and
// the help screen is written from it, so that the two cannot differ.
type KeyMap struct {
	Up, Down, PageUp, PageDown, Top, Bottom key.Binding
	NextRegion, PreviousRegion, Region      key.Binding
	Filter, Back                            key.Binding
	Sort                                    key.Binding
	SortBy                                  [sortKeys]key.Binding
	Pause, Refresh, Theme, Help             key.Binding
	Suspend, Quit                           key.Binding
}

// NewKeyMap returns the dashboard's keys.
func NewKeyMap() KeyMap {
	bind := func(help, desc string, keys ...string) key.Binding {
		return key.NewBinding(key.WithKeys(keys...), key.WithHelp(help, desc))
	}
	k := KeyMap{
		Up:             bind("k, up", "select the replica above", "k", "up"),
		Down:           bind("j, down", "select the replica below", "j", "down"),
		PageUp:         bind("pgup, ^B", "one page up", "pgup", "ctrl+b"),
		PageDown:       bind("pgdn, ^F", "one page down", "pgdown", "ctrl+f"),
		Top:            bind("g, home", "the first replica", "g", "home"),
		Bottom:         bind("G, end", "the last replica", "G", "shift+g", "end"),
		NextRegion:     bind("tab", "next region alone", "tab"),
		PreviousRegion: bind("shift+tab", "previous region alone", "shift+tab"),
		Region:         bind("enter", "region of the selection; all", "enter"),
		Filter:         bind("/", "show what contains the words", "/"),
		Back:           bind("esc", "one step back", "esc"),
		Sort:           bind("s", "by the next column", "s"),
		Pause:          bind("p, space", "hold the figures; go on", "p", "space"),
		Refresh:        bind("r", "fetch now", "r"),
		Theme:          bind("t", "next theme", "t"),
		Help:           bind("?", "this help", "?"),
		Suspend:        bind("^Z", "suspend", "ctrl+z"),
		Quit:           bind("q, ^C", "leave", "q", "ctrl+c"),
	}
	for i, letter := range [sortKeys]string{"N", "S", "M", "U", "P", "R", "O", "K", "H", "T", "A"} {
		k.SortBy[i] = bind(letter, "by "+sortWords[i], letter)
	}
	return k
}

// Groups lists the keys as the help screen shows them.
func (k KeyMap) Groups() []KeyGroup {
	return []KeyGroup{
		{"Moving", []key.Binding{k.Up, k.Down, k.PageUp, k.PageDown, k.Top, k.Bottom}},
		{"Showing", []key.Binding{k.NextRegion, k.PreviousRegion, k.Region, k.Filter, k.Back, k.Pause, k.Refresh, k.Theme, k.Help, k.Suspend, k.Quit}},
		{"Sorting (twice: turned round)", append([]key.Binding{k.Sort}, k.SortBy[:]...)},
	}
}

// KeyGroup is a titled list of keys.
type KeyGroup struct {
	Title string
	Keys  []key.Binding
}
