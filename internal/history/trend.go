package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// A point is the median of what was read in a slice, and when that was, in minutes.
type point struct{ at, value float64 }

// A trend is the line through points whose slope is the median of those between any two of them (Theil and Sen), which
// up to a quarter of points that are anywhere does not change much. Their spread around it is 1.48 times the median
// distance, which is the standard deviation if they are normally distributed.
type trend struct {
	begin, slope float64 // at minute 0, and by minute
	growth       float64 // from the first point to the last one
	spread       float64
}

// enough slices are as many as show a trend.
const enough = 8

// warmUp returns how many slices of all are left out: the first fifth, ten at most. Pools, caches and tables that have
// a bound fill up then.
func warmUp(all int) int { return min(all/5, 10) }

func trendOf(points []point) (t trend) {
	var slopes, begins, distances []float64
	for i, p := range points {
		for _, q := range points[:i] {
			slopes = append(slopes, (p.value-q.value)/(p.at-q.at))
		}
	}
	if len(slopes) == 0 {
		return t
	}
	t.slope = part(slopes, 0.5)
	for _, p := range points {
		begins = append(begins, p.value-t.slope*p.at)
	}
	t.begin = part(begins, 0.5)
	for _, p := range points {
		distances = append(distances, math.Abs(p.value-t.begin-t.slope*p.at))
	}
	t.spread = 1.4826 * part(distances, 0.5)
	t.growth = t.slope * (points[len(points)-1].at - points[0].at)
	return t
}

// tolerance is by how much a quantity may have grown: three times the spread, and the floor, which is a fifth of what it
// was at least, since the pauses of clients change. What leaks grows with time, and its spread does not, so that a longer
// soak finds a slower leak. At quiet moments the floors are lower: see rates.
func (t trend) tolerance(q quantity) float64 { return 3*t.spread + max(q.floor, t.begin/5) }

func (t trend) grows(q quantity) bool { return q.floor > 0 && t.growth > t.tolerance(q) }

// points returns the medians of a quantity of all slices but the first ones, while clients were there.
func (s *series) points(of int) (all []point) {
	values, times := map[int][]float64{}, map[int][]float64{}
	last := 0
	for _, r := range s.all {
		if v := r.values[of]; r.active && !math.IsNaN(v) {
			values[r.slice] = append(values[r.slice], v)
			times[r.slice] = append(times[r.slice], s.minute(r))
			last = r.slice
		}
	}
	for slice := warmUp(last) + 1; slice <= last; slice++ {
		if v := values[slice]; v != nil {
			all = append(all, point{part(times[slice], 0.5), part(v, 0.5)})
		}
	}
	return all
}

func (s *series) minute(r reading) float64 { return float64(r.at-s.all[0].at) / 60e9 }

// judge prints a table of all quantities, and returns those that grow. Quiet are what the proxy had at quiet moments,
// which shows a slower leak than what it has while clients come and go.
func (s *series) judge(to io.Writer, quiet []moment) (found []Anomaly) {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "quantity\tfirst\tlast\tslope/h\tgrowth\tallowed\t")
	for i, q := range quantities {
		found = append(found, judgeGrowth(table, q, s.points(i))...)
	}
	for _, r := range rates {
		var points []point
		for _, m := range quiet[warmUp(len(quiet)):] {
			points = append(points, point{m.at, float64(r.of(m.sample))})
		}
		found = append(found, judgeGrowth(table, quantity{"at rest: " + r.name, "", float64(r.tolerance)}, points)...)
	}
	_ = table.Flush() // to has no errors that matter
	return found
}

// judgeGrowth writes a row of a table, and returns an anomaly if a quantity grows.
func judgeGrowth(table io.Writer, q quantity, points []point) []Anomaly {
	name := strings.TrimSpace(q.name + " " + q.unit)
	if len(points) < enough {
		fmt.Fprintf(table, "%s\ttoo short to judge\t\t\t\t\t\n", name)
		return nil
	}
	t, first, last := trendOf(points), points[0], points[len(points)-1]
	allowed, verdict := "", ""
	if q.floor > 0 {
		allowed = fmt.Sprintf("%.1f", t.tolerance(q))
	}
	if t.grows(q) {
		verdict = "grows"
	}
	fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%+.2f\t%+.2f\t%s\t%s\n", name, first.value, last.value, 60*t.slope, t.growth, allowed, verdict)
	if !t.grows(q) {
		return nil
	}
	return []Anomaly{{Rule: 8, What: fmt.Sprintf("%s: %.1f more after %.0f minutes, and %.1f are noise", name, t.growth, last.at-first.at, t.tolerance(q))}}
}
