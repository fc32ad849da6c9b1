// Package printable makes text from outside harmless on a terminal: engine logs, errors
// of remote ends, names in snapshots, tags in clouds. Such text can move the cursor,
// overwrite lines, turn the direction of writing, hide characters or answer for the
// user. Text and Line say what becomes of it, Writer applies Text to all that a verb
// prints, and Table lays cells out, each through Line.
//
// What may pass is what shows as itself, line ends and tabs. Colours do not: a text
// can hide itself with them. Styling of our own goes around a Writer, by Raw.
package printable
