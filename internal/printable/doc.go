// Package printable makes untrusted text safe to print on a terminal: engine logs, remote
// errors, names in snapshots, cloud tags. Such text can move the cursor, overwrite lines,
// change the writing direction, hide characters or imitate the user's input. Text and Line
// sanitise a string, Writer applies Text to everything that a command prints, and Table
// applies Line to each cell.
//
// Visible characters, newlines and tabs are kept. Colours are removed, because they can
// hide text. A program's own styling bypasses a Writer through Raw.
package printable
