// Package tui draws a running service: the screen behind `skyserve top`.
//
// Read screen.go first: a screen is everything that one picture is drawn from,
// and drawing it is a pure function. overview.go and table.go are its two panes;
// model.go feeds it with snapshots and keystrokes; keys.go is the only list of
// keys; text.go and theme.go hold how figures and states look everywhere.
//
// Three rules hold on every screen: an unknown figure is drawn as "-" and never
// as 0, colour is never the only signal, and no line is wider and no frame
// taller than the terminal.
package tui
