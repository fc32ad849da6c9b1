package tui

import (
	"slices"
	"time"

	"skyserve/internal/telemetry"
)

// observedChange is a change of a replica that the dashboard observed.
type observedChange struct {
	at time.Time
	change
}

// maxObserved is the maximum number of changes kept.
const maxObserved = 500

// recordChanges records changes observed at a time.
func (s *screen) recordChanges(at time.Time, changes []change) {
	for _, c := range changes {
		s.observed = append(s.observed, observedChange{at, c})
	}
	if extra := len(s.observed) - maxObserved; extra > 0 {
		s.observed = append(s.observed[:0], s.observed[extra:]...)
	}
}

// eventSheet has one row per event, newest first: the last events of the service, also those before
// the dashboard was opened, and the state changes that this dashboard observed.
func (s *screen) eventSheet() sheet {
	textColumn := func(title string, minWidth, maxWidth, rank int, letter, word string) sheetColumn {
		return sheetColumn{column{title: title, minWidth: minWidth, maxWidth: maxWidth, dropRank: rank}, letter, word, false, false}
	}
	sh := sheet{noun: "event", columns: []sheetColumn{
		textColumn("TIME", 8, 11, 0, "I", "time"),
		textColumn("ACTOR", 4, 24, 4, "B", "actor"),
		textColumn("REGION", 6, 20, 3, "R", "region"),
		textColumn("EVENT", 10, 60, 1, "H", "event"),
		textColumn("REASON", 16, 200, 2, "Y", "reason"),
	}, empty: []string{"No events yet", "changes of the service, and state changes while this dashboard is open, appear here"}}
	sh.rows = s.events()
	return sh
}

// listedEvent is an event of the list.
type listedEvent struct {
	telemetry.Event
	role role // of its message
}

// listedEvents returns the events of the list, newest first.
func (s *screen) listedEvents() []listedEvent {
	var all []listedEvent
	for _, e := range s.snapshot.Events {
		if s.focus != "" && e.Region != s.focus {
			continue
		}
		r := roleText
		if e.Failed() {
			r = roleBad
		}
		all = append(all, listedEvent{e, r})
	}
	for _, c := range s.observed {
		if s.focus != "" && c.region != s.focus || c.at.After(s.snapshot.At) {
			continue
		}
		what := c.describe(s.theme.glyphs)
		all = append(all, listedEvent{telemetry.Event{
			ID: c.at.Format(time.RFC3339Nano) + what, At: c.at, Actor: "observed", Region: c.region, Object: c.replica, Message: what, Reason: c.reason,
		}, c.stateRole(s.theme.glyphs)})
	}
	slices.SortStableFunc(all, func(a, b listedEvent) int { return b.At.Compare(a.At) })
	return all
}

// events returns the rows of the events.
func (s *screen) events() []sheetRow {
	var rows []sheetRow
	for _, e := range s.listedEvents() {
		why := s.theme.text(e.Reason)
		rows = append(rows, sheetRow{id: e.ID, details: []string{why}, cells: []cellValue{
			textCell(s.eventTime(e.At), roleMuted), textCell(s.theme.text(e.Actor), roleText), textCell(s.theme.text(e.Region.ShortName()), roleAccent),
			textCell(s.theme.text(e.Message), e.role), textCell(why, roleMuted),
		}})
	}
	return rows
}

// eventTime formats the time of an event: the time of day, or for earlier days the date and time.
func (s *screen) eventTime(at time.Time) string {
	now := s.snapshot.At
	if at = at.In(now.Location()); at.YearDay() == now.YearDay() && at.Year() == now.Year() {
		return at.Format(time.TimeOnly)
	}
	return at.Format("01-02 15:04")
}
