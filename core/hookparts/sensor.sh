# ---- values of a host's sensor, from core/hookparts/sensor.sh
# A sensor that ends, hangs or prints half a report keeps what it said last, for ever or until somebody looks. So
# this never ends, never waits for anybody but the local disk, and says 0 unless the daemon was heard just now.
TAB=$(printf '\t')

# Sets `fresh` to 1 if the heartbeat that daemon or relay keeps here is healthy and young, else 0.
look() {
  fresh=0
  beat=
  read -r beat <"$BEAT" 2>/dev/null || return 0
  case $beat in *'"healthy": true'*) ;; *) return 0 ;; esac
  now=$(date +%s) && at=$(stat -c %Y "$BEAT" 2>/dev/null) || return 0
  case $now$at in '' | *[!0-9]*) return 0 ;; esac
  age=$((now - at))
  if [ "$age" -le "$LIMIT" ] && [ "$age" -ge "-$LIMIT" ]; then fresh=1; fi
}

# Calls `report NATIVE SLOTS` for every QPU that is known here, with 0 slots unless `fresh`.
report_all() {
  seen=' '
  while IFS=$TAB read -r name native slots; do
    case $native in '' | *[!A-Za-z0-9_]*) continue ;; esac
    case $slots in '' | *[!0-9]*) continue ;; esac
    [ "$fresh" = 1 ] || slots=0
    report "$native" "$slots"
    seen="$seen$native "
    case " $KNOWN " in *" $native "*) ;; *) KNOWN="$KNOWN $native" ;; esac
  done 2>/dev/null <"$RUNTIME/names"
  for native in $KNOWN; do
    case $seen in *" $native "*) ;; *) report "$native" 0 ;; esac
  done
}
# ---- end of core/hookparts/sensor.sh
