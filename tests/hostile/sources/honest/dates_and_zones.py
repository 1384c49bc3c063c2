
import calendar, datetime, time, zoneinfo
def solve():
    moment = datetime.datetime(2024, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    return [moment.astimezone(datetime.timezone.utc).isoformat(), calendar.monthrange(2024, 2)[1],
            (datetime.date(2024, 3, 1) - datetime.date(2024, 2, 1)).days, time.strftime("%Y", time.gmtime(0)),
            datetime.datetime.strptime("05/06/21", "%d/%m/%y").strftime("%A")]
