// Package tui implements `skyserve top`, the dashboard of a running service.
//
// Read screen.go first: a screen holds everything that a frame is drawn from, and
// drawing it is a pure function. view.go lists the views; list.go and table.go are the
// two kinds of list. model.go passes snapshots and keystrokes to the screen, keys.go is
// the only list of keys, and text.go and theme.go format metrics and states everywhere.
//
// Three rules apply to every frame: an unknown value is drawn as "-" and never as 0,
// colour is never the only signal, and no frame is wider or taller than the terminal.
package tui
