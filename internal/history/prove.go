package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// prove plants one fault after the other, without others, and fails if the judge misses the promise that one breaks,
// or finds something where nothing is planted.
func prove(ctx context.Context, o options) error {
	o.faults, o.duration = nil, 3*time.Second
	plants := o.plants()
	missed := 0
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "planted\tpromise\tfound\tanomalies")
	order := func(a, b string) int { return cmp.Or(cmp.Compare(plants[a], plants[b]), cmp.Compare(a, b)) }
	for _, name := range slices.SortedFunc(maps.Keys(plants), order) {
		r, err := o.run(ctx, name)
		if err != nil {
			return err
		}
		found := slices.IndexFunc(r.anomalies, func(a Anomaly) bool { return a.Rule == plants[name] })
		if found < 0 {
			missed++
		} else {
			fmt.Printf("planted %q, seed %d, also in %s:\n", name, o.seed, r.file(found, "txt"))
			r.printAnomaly(os.Stdout, r.anomalies[found])
		}
		fmt.Fprintf(table, "%s\t%d\t%v\t%d\n", name, plants[name], found >= 0, len(r.anomalies))
	}
	r, err := o.run(ctx, "")
	if err != nil {
		return err
	}
	fmt.Fprintf(table, "nothing\t\t%v\t%d\n", len(r.anomalies) > 0, len(r.anomalies))
	if err := table.Flush(); err != nil {
		return err
	}
	if missed > 0 || len(r.anomalies) > 0 {
		return fmt.Errorf("%d planted faults missed, %d anomalies found where nothing is planted; see %s", missed, len(r.anomalies), o.dir)
	}
	return nil
}
